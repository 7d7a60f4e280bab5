"""Where the driver is called: in processes of their own, which can be killed when a call hangs, and whose death hurts
nobody. `readers.Readers` keeps them, and has what they read.

Nothing is imported here: a reader process needs no numpy, and its keeper does.
"""
