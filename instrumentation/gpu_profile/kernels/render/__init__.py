"""What people are shown of a report: text, JSON values, a table, a page, a trace for Perfetto. Pure."""
