"""The views of an `Analysis`. Each module has a function of the analysis, and of the recording where it draws.

- `text`: tables and reasons for a terminal, and the words that all views share. `conclusion` puts the result into
  sentences. `labels` has the devices' short names.
- `data`: JSON. `tables`: CSV.
- `page`: HTML; `drawing` reduces its timeline to a bounded size. `perfetto`: a trace. `figure`: matplotlib. These three
  draw executions on `lanes`.
- `report`: the public `analyse`, with a result that notebooks display as its page.

Imports `account`, the text and the data of `ranks` and `clocks`, and the forms of `report`. `data.of_region` and
`text.region_cells` are the places for a new fact of a region.
"""
