"""Three rings of checks, one command each: `make test` (every change), `.ci/run` (every landing), `make nightly`."""
