# What a developer types. All but `make setup` use the active environment: `. .venv/bin/activate` first.
.PHONY: setup fast all check coverage

setup:     # a virtual environment in .venv with everything that tests and checks need
	python3 -m venv .venv
	.venv/bin/pip install -r requirements.txt -r requirements-dev.txt

fast:      # the fast tests, before a commit
	pytest

all:       # all tests, also those that start simulators and servers
	pytest --slow

check:     # linter, format and types
	ruff check .
	ruff format --check .
	mypy

coverage:  # the fast tests, then the share of each module's lines and branches that they run
	pytest --cov=fedmend --cov=fl_components --cov-branch --cov-report=term:skip-covered
