"""The similarity join: all pairs of vectors above a threshold.

cells, visits, cell_tasks  which rows lie in one cell or visit it, so that most pairs are never compared
codes, tiles               short codes, whose products bound scores from above, compared tile by tile
exact                      all pairs
approximate                most of them, and how many
distributed                the same over worker processes
"""
