"""The comparison of two analyses, region by region, with confidence intervals. Pure.

Two runs of the same program differ by chance too. So each difference has an interval, and it counts as a change only if
it exceeds both the interval and the spread from run to run. Read in this order:

- `quantities`: the compared quantities of a region in one recording, with their intervals.
- `differences`: `compare`, its `Comparison` and each `Difference`.
- `gate`: the conditions of `--fail-on`, such as `decode.energy > +5%`.
- `text`, `page` and `data`: a comparison in lines, as HTML and as JSON.

Imports `account`, `chance` and the words and forms of `views`. The comparison of `costs` uses `differences` too.
"""
