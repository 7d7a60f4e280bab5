"""How what is published is called: names, labels and units under one scheme of names or another."""
