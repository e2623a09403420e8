"""Makes the parts of a role out of configuration and clients: plain constructor calls, which wiring puts together."""
