"""Content for benchmarks."""
import os, random


def page(size):
    """HTML with the words, tags and numbers of a list of records."""
    words = [line.strip() for line in open(os.path.join(os.path.dirname(__file__), "compression.py")) if line.strip()]
    pick = random.Random(1)
    rows = []
    while sum(map(len, rows)) < size:
        number = pick.randrange(10**9)
        rows.append(f'<tr class="row" id="r{number}"><td><a href="/records/{number}">{pick.choice(words)[:60]}</a></td>'
                    f"<td>{number % 977}</td></tr>\n")
    return "".join(rows)[:size].replace("$", "")
