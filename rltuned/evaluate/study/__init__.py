"""The results of the project: a list of evaluations, and the page that they make (`make results`, docs/results.md).

- `catalogue`: what is evaluated, and what is aimed at: data, in one place.
- `run`: does what is missing or out of date, and keeps each result with what it was made from.
- `tables`: the results of one protocol side by side, with intervals and verdicts.
- `page`: docs/results.md from the results. `paper`: its part about the RLTune paper.
- ``python -m rltuned.evaluate.study``: all of that.

What may be changed freely: the words and the order of the page; studies may be added. What must stay: every number of the
page comes from a result in `docs/results/`, a target that is missed is called missed, the same results give the same
bytes, and no result or page names a path of the machine that made it.

What must not be imported: as for `rltuned.evaluate`.
"""
