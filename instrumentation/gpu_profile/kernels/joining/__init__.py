"""Records in columns, joined: the launching call and region of each operation, and the causes of idle time. Pure.

Read in this order:

- `columns`: records as arrays.
- `work`: operations with the calls that launched them. `nesting`: which intervals of a thread enclose which.
- `placing`: the region of each operation.
- `intervals`: unions of times. `idle`: gaps and their causes.

Imports the records alone. A new kind of record is a table in `columns`; a new cause of idle time is a field of
`idle.Idle`.
"""
