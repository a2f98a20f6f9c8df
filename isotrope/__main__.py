"""`python -m isotrope` runs the command line."""

from isotrope import main

main()
