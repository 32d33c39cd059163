"""``rltuned report``: what rltuned did, or would have done, in a period, and what that is worth (docs/good-for-us.md).

What the decision log says (`period`) and the period's own jobs in the simulator (`replay`, `gains`) become one JSON
value with an advice (`build`), and that tables and one HTML page.

What must stay: `period` and `report_tables` need nothing that the controller host lacks; only `replay` and `gains` need
the simulator, only `charts` matplotlib. The page loads nothing from elsewhere, and every text of the cluster in it is
escaped.
"""
