"""A site that answers without FLARE: a worker and the files of the site."""

from contextlib import contextmanager
from unittest.mock import patch

import torch
from factories import CLASSES
from torch_factories import TinyNetwork

from fedmend.learning import networks
from fedmend.messages import Question, RunSpec
from fedmend.method import RoundTask
from fedmend.site.config import SiteConfig
from fedmend.site.worker import SiteSettings, SiteWorker

RUN = RunSpec("run-1", CLASSES, "tiny", 7)
SETTINGS = {"learning_rate": 0.1, "batch_size": 4, "image_size": 32}


class Client:
    """A site's process: a worker and the files of the site."""

    def __init__(self, folder, method, **settings):
        self.folder, self.method, self.settings = folder, method, {**SETTINGS, **settings}
        self.config = SiteConfig(folder / "data", folder / "cache", folder / "state", min_count=3, threads=1)
        self.name, self.run = "site-1", RUN
        self.start()

    def start(self):
        self.worker = SiteWorker(self.method, SiteSettings.of(**self.settings))

    def ask(self, question, task, weights=None, *, evaluate=False, stop=lambda: False):
        asked = Question(question, weights or {}, {self.name: task}, self.run, evaluate)
        return self.worker.answer(self.name, asked, self.config, stop=stop)

    def train(self, round_num=0, *, mark="", **options):
        task = RoundTask("train", round_num, 3, seed=7, ledger_mark=mark)
        return self.ask("train", task, global_model(), **options)

    def collect(self, round_num, **knowledge):
        task = RoundTask("look", round_num, 3, knowledge, seed=7, training=False)
        return self.ask("collect", task, global_model())


def global_model():
    return {k: v.numpy() for k, v in networks.initial_network("tiny", CLASSES, 7).state_dict().items() if v.ndim}


def census_task():
    return RoundTask("census", 0, 3)


@contextmanager
def one_site(network=TinyNetwork):
    """The backbone ``tiny`` at a site, whose worker sets the number of threads."""
    threads = torch.get_num_threads()
    with patch.dict(networks.NETWORKS, {"tiny": network}):
        yield
    torch.set_num_threads(threads)
