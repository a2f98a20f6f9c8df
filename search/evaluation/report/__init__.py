"""One page about an index.

figures, isotropy  the numbers
results            result files of `isotrope evaluate`
plots              SVG
markup, numbers    escaped HTML, written numbers
sections, page     the page
"""
