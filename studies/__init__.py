"""The proof beside the product: the evaluations behind docs/results.md, what they gave, and what is made from that.

Nothing here is installed: the wheel holds `rltuned` alone, and nothing of `rltuned` imports `studies` (a contract of
import-linter). README.md says which command makes which number.

- `catalogue`: what is evaluated, and what is aimed at: data, in one place.
- `run`: does what is missing or out of date, and keeps each result with what it was made from. `kept`: in which form.
- `tables`: the results of one protocol side by side, with intervals and verdicts.
- `page`: docs/results.md, a summary of the results. `sheets`: docs/results/*.csv, every number. `paper`: what stands
  beside the RLTune paper, whose numbers are in paper.toml.
- `clusters`: A/Bs on real clusters, kept.
- `scaling`: how run times depend on nodes (scaling.toml). `elastic`: rules for jobs with a range of nodes.
- ``python -m studies`` (`make results`): all of that.
- `lending`: what lending gains, and whom it harms; `waits`: the same in hours; `limits`: what limits tell of run times;
  `chance`: how often Slurm's own order is called better than itself.
- `manpage`: docs/rltuned.1 from the command line. `reference`: docs/reference.md from settings, commands, metrics and
  alert rules. `compare_checkouts`: whether a refactoring changed a number.

What may be changed freely: the words and the order of the page; studies may be added. What must stay: every number of
the page comes from a result in `studies/results/`, the same results give the same bytes, and no result or page names a
path of the machine that made it.

What must not be imported: TensorFlow and the daemon; the man page imports the command line, the reference the metrics.
"""
