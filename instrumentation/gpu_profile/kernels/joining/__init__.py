"""Records in columns, joined: which call launched an operation, in which region, and why a GPU was idle. Pure."""
