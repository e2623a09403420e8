"""``python -m tiersidecar``."""

from tiersidecar.app.cli import main

main()
