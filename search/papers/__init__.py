"""Tables and methods of the papers, reproduced.

`whiteningbert`, `methods` and `rte` measure sentences, `words` static vectors of words.
"""
