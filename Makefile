# What a developer types. All but `make setup` use the active environment: `. .venv/bin/activate` first.
.PHONY: setup fast all check coverage lock build audit

# What a site or a server may need of pyproject.toml's extras; the others are for comparisons, notebooks and the pages.
SITE_EXTRAS = privacy review dicom pacs pretrained statsd watch
COMPILE = uv pip compile --quiet --no-emit-package fedmend --generate-hashes --only-binary :all: \
	--python-platform x86_64-manylinux_2_28 --no-annotate

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

lock:      # the three locks, after a change of pyproject.toml or requirements*.txt; UPGRADE=--upgrade takes newer versions
	$(COMPILE) $(UPGRADE) --python-version 3.11.5 --all-extras pyproject.toml requirements.txt requirements-dev.txt \
		-o requirements-dev.lock
	$(COMPILE) $(UPGRADE) --python-version 3.11 $(SITE_EXTRAS:%=--extra %) pyproject.toml requirements.txt \
		-c requirements-dev.lock -o requirements-site.lock
	$(COMPILE) $(UPGRADE) --python-version 3.11 requirements.txt -c requirements-dev.lock -o requirements.lock

build:     # a release in dist/: FedMend's wheel, the lock with its hash, the parts list
	provisioning/deploy/build dist

audit:     # known vulnerabilities of every locked package; asks an advisory service on the internet, fails without it
	pip-audit --strict --disable-pip --require-hashes -r requirements-dev.lock
