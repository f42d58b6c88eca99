"""The commands of the units of systemd, as systemd would run them: their environment, umask and no new rights."""

import configparser
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from deployment import SITES, deployed
from factories import ROOT

from fl_components.run.poc import MARK, ProvisionedFederation

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")]


def service(name):
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(ROOT / "provisioning" / "deploy" / f"fedmend-{name}.service")
    return parser["Service"]


class FederationOfUnits(ProvisionedFederation):
    """Server and sites started by their units' commands, with a number left over from before a reboot."""

    def start(self, *names):
        for name in names or (self.server, *self.sites):
            unit, kit = service("server" if name == self.server else "site"), self.kits / name
            (kit / "daemon_pid.fl").write_text(f"{os.getpid()}\n")

            def here(text, kit=kit):
                places = {"/var/lib/fedmend/kit": kit, "/var/lib/fedmend": kit.parent}
                for place, folder in {**places, "/opt/fedmend/bin": Path(sys.executable).parent}.items():
                    text = text.replace(place, str(folder))
                return text

            environment = dict(word.split("=", 1) for word in here(unit["Environment"]).split())
            ours = {"PYTHONPATH": os.environ["PYTHONPATH"], "OMP_NUM_THREADS": "1", MARK: f"{self.mark}/{name}"}
            subprocess.run(here(unit["ExecStartPre"]).split(), check=True)
            with open(kit / "output.txt", "a") as output:
                subprocess.Popen(
                    ["setpriv", "--no-new-privs", *here(unit["ExecStart"]).split()],
                    cwd=here(unit["WorkingDirectory"]),
                    env=environment | ours,
                    umask=int(unit["UMask"], 8),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )


def test_server_and_sites_register_and_write_files_for_their_owner_alone(tmp_path):
    with deployed(tmp_path, provisioned=FederationOfUnits) as deployment:
        kits = deployment.federation.kits
        assert {client.name for client in deployment.session.get_system_info().client_info} == set(SITES)
        for name in (deployment.federation.server, *SITES):
            assert int((kits / name / "daemon_pid.fl").read_text()) != os.getpid()
            assert stat.S_IMODE((kits / name / "log.txt").stat().st_mode) == 0o600
            for process, owner in deployment.federation.processes().items():
                told = Path(f"/proc/{process.pid}/status").read_text()
                assert "NoNewPrivs:\t1" in told, owner
    assert deployment.federation.processes() == {}
