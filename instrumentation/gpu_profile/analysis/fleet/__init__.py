"""Questions about many recordings, or about a fleet, in SQL. The same SQL answers both.

Each question is a file in `sql/`: one SELECT over base tables, which ClickHouse and DuckDB both accept. Its comment has
the title and the meaning of each column. The base tables have the same names and columns everywhere, but come from
different sources.

Read in this order:

- `questions`: the questions, the columns of the base tables, and the table of Student's t for intervals.
- `tables`: the base tables of recordings, from their analyses. So the numbers are those of `analyze`.
- `engine`: DuckDB in this process, with a view for each question. Needs the extra `query`.
- `answer_text`: an answer as a table, CSV or JSON.
- `clickhouse`: views over the tables of the OpenTelemetry Collector's ClickHouse exporter, for a fleet. Text only:
  `gpu-profile query --clickhouse` prints it, and nothing here connects to a server.

Imports the rest of `analysis`, the catalogue's names and `report`. To add a question, write its SQL file, and add its
name to `questions` and its sample to docs/fleet-sql.md. To add a column to a base table, add it to `questions.BASES`,
`tables` and `clickhouse`.
"""

from gpu_profile.analysis.fleet.questions import QUESTIONS, FleetQuestion
from gpu_profile.analysis.fleet.tables import RecordedRun, tables_of

__all__ = ["QUESTIONS", "FleetQuestion", "RecordedRun", "tables_of"]
