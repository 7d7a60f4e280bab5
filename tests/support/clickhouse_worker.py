"""An embedded ClickHouse in a process of its own: reads statements and writes results, a line of JSON each."""

import json
import sys
from typing import Any

import chdb


def main() -> None:
    connect: Any = chdb.connect
    connection = connect(":memory:")
    for line in sys.stdin:
        statement, form = json.loads(line)
        try:
            reply = {"text": str(connection.query(statement, form))}
        except RuntimeError as error:
            reply = {"error": str(error)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
    connection.close()


if __name__ == "__main__":
    main()
