"""The similarity join: all pairs of vectors above a threshold.

cells, probes, cell_tasks  Voronoi cells and the cells that each row probes, so that most pairs are never compared
quantised, tiles           quantised vectors whose products bound the scores, compared tile by tile
exact                      all pairs
approximate                most pairs, with measured recall
distributed                either join over worker processes
"""
