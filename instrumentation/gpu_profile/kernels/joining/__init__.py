"""Records in columns, joined: which call launched an operation, in which region, and why a GPU was idle. Pure.

Read in this order:

- `columns`: records as arrays.
- `work`: operations with the calls that launched them. `nesting`: what was open around what, on each thread.
- `placing`: the region of each operation.
- `intervals`: unions of times. `idle`: gaps and their causes.

Imports the records alone. A new kind of record is a table in `columns`; a new cause of idle time is a field of
`idle.Idle`.
"""
