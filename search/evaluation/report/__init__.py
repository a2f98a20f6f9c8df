"""One page about an index.

statistics                 the numbers
svg                        the pictures
sections, duplicates       headings and blocks
blocks, page.html, page    the page
"""
