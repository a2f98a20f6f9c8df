"""Reports on an index, each a single HTML page.

statistics                 figures
svg                        plots
sections, duplicates       headings and blocks
page.html, page            the page
"""
