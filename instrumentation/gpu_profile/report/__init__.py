"""What people are shown: tables of regions. Pure: it takes summaries and verdicts, and returns text."""

from gpu_profile.report.table import REGION_COLUMNS, region_row, text_table

__all__ = ["REGION_COLUMNS", "region_row", "text_table"]
