"""How fast Pilotage is, and others beside it: see docs/performance.md."""
