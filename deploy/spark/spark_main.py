"""``spark-submit spark_main.py reconcile --config FILE ...``: the command line, as a file that spark-submit takes."""

from tiersidecar.app.cli import main

if __name__ == "__main__":
    main()
