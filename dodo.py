"""The setup graph for doit: `doit list` shows what there is."""

from tasks import graph

DOIT_CONFIG, task_graph = graph.for_doit(__file__)
