"""One run of `benchmarks.builds`, in a process of its own: its name and a number of threads in, a line of JSON out."""

import json
import sys

from benchmarks.builds import measure

if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
