"""All pairs that score at least a threshold.

join        the exact join; approximate  the one that may miss pairs, and says how many
basis       how much of a vector goes into its code
codes       short codes, whose products bound scores from above
tiles       comparing codes tile by tile
workers     threads whose results wait in a bounded queue
cells       neighbourhoods, for the approximate join
"""
