"""A federation whose participants make their keys themselves, by FLARE's ``cert`` and ``package``."""

import io
import json
import shutil
import uuid
import zipfile

import pytest
import yaml
from deployment import SITES, deployed, tiny_job
from factories import ROOT
from simulation import fedmend, run

from fl_components.policy.agreed import agreed_hash, policy_hash
from fl_components.run.poc import ProvisionedFederation, local_project

pytestmark = pytest.mark.slow
HOST = "localhost"


def flare(*words, home):
    """A command of FLARE's on the machine of one participant, in a checkout."""
    code, out = run(["nvflare.cli", *words], home=home, cwd=ROOT)
    assert code == 0, out
    return out


class FederationOfOwnKeys(ProvisionedFederation):
    """Kits made as provisioning/README.md says, each participant in a folder of its own, side by side in the end."""

    def __init__(self, folder, sites, *, baselines):
        project = local_project(folder, list(sites), baselines=baselines)
        (server,) = (p for p in project["participants"] if p["type"] == "server")
        address = {"host": HOST, **{port: server[port] for port in ("fed_learn_port", "admin_port")}}
        server |= {"name": HOST}
        people = {p["role"]: p["name"] for p in project["participants"] if p["type"] == "admin"}
        self.sites, self.mark, self.server = list(sites), uuid.uuid4().hex, HOST
        self.kits, self.project = folder / "kits", folder / "project.yml"
        self.lead, self.admin = self.kits / people["lead"], folder / "admin"
        self.kits.mkdir(parents=True)
        self.admin.mkdir()
        self.project.write_text(yaml.safe_dump(project))
        profile = self.admin / "profile.yml"
        profile.write_text(
            yaml.safe_dump({"name": "fedmend", "scheme": "grpc", "connection_security": "mtls", "server": address})
        )
        flare("cert", "init", "--profile", profile, "-o", self.admin / "ca", home=self.admin)
        operator = {"name": people["project_admin"], "type": "admin", "org": server["org"], "role": "org_admin"}
        self.operator = self.kits / operator["name"]
        for participant in (*project["participants"], operator):
            if participant["name"] in (*sites, HOST, people["lead"]) or participant is operator:
                self._join({**project, "participants": [participant]}, folder / "machines" / participant["name"])

    def _join(self, definition, machine):
        """From the definition of one participant to its kit, in the folder of its machine."""
        name = machine.name
        machine.mkdir(parents=True)
        (machine / "me.yml").write_text(yaml.safe_dump(definition))
        flare("cert", "request", "-p", machine / "me.yml", "--out", machine / "request", home=machine)
        shutil.copy(machine / "request" / f"{name}.request.zip", self.admin)
        sent, back = self.admin / f"{name}.request.zip", self.admin / f"{name}.signed.zip"
        profile = self.admin / "profile.yml"
        flare("cert", "approve", sent, "-c", self.admin / "ca", "--profile", profile, "--out", back, home=self.admin)
        root = json.loads((self.admin / "ca" / "ca.json").read_text())["rootCA_fingerprint"]
        shutil.copy(back, machine)
        words = ["--request-dir", machine / "request", "-w", machine / "out", "--fingerprint", root]
        flare("package", machine / back.name, *words, home=machine)
        shutil.move(machine / "out" / "fedmend" / "prod_00" / name, self.kits)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with deployed(tmp_path_factory.mktemp("own_keys"), provisioned=FederationOfOwnKeys) as running:
        yield running
    assert running.federation.processes() == {}


def keys(folder):
    """Files with a private key in them, archives opened."""
    found = set()
    for file in (f for f in folder.rglob("*") if f.is_file()):
        content = file.read_bytes()
        members = [content]
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                members += [archive.read(name) for name in archive.namelist()]
        if any(b"PRIVATE KEY" in member for member in members):
            found.add(str(file.relative_to(folder)))
    return found


def test_the_project_admin_has_no_key_but_that_of_the_root(deployment):
    federation = deployment.federation
    assert keys(federation.admin) == {"ca/rootCA.key"}
    for site in SITES:
        kit = federation.kits / site
        assert keys(kit) == {"startup/client.key"}
        assert (kit / "startup" / "client.key").stat().st_mode & 0o077 == 0


def test_every_hospital_has_the_policy_that_the_lead_has_hashed(deployment, tmp_path):
    federation = deployment.federation
    agreed = agreed_hash(federation.project)
    assert {policy_hash(federation.kits / site) for site in SITES} == {agreed}
    kit = tmp_path / "kit"
    shutil.copytree(federation.kits / "site-1", kit)
    words = ["sitecheck", "--kit", kit, "--policy", agreed]
    said = fedmend(*words, home=tmp_path)[1]
    assert "ok    agreed policy: " in said
    assert "ok    connection: the server accepts the certificate of this site" in said
    file = kit / "local" / "privacy.json"
    file.write_text(file.read_text().replace("fl_components.guard.ReportGuard", "nvflare.apis.dxo_filter.DXOFilter"))
    code, said = fedmend(*words, home=tmp_path)
    assert code == 1
    assert "fail  agreed policy: local/privacy.json: expected the policy that was agreed, got another (" in said


def test_a_job_runs_to_its_end(deployment):
    with tiny_job("fedmlp_ich", run_name="own_keys") as job:
        lines, sentence = deployment.run(job)
    assert sentence == ""
    assert any("own_keys: fedmlp, 2 sites, 5 classes, finished" in line for line in lines)


def test_the_operator_of_the_server_shuts_a_site_out_and_lets_it_in_again(deployment, tmp_path):
    federation = deployment.federation
    for command, state in (("disable-client", "disabled"), ("enable-client", "enabled")):
        words = ["system", command, "site-2", "--startup-kit", federation.operator, "--force"]
        code, out = run(["nvflare.cli", *words], home=tmp_path)
        assert (code, f"state: {state}" in out) == (0, True), out
