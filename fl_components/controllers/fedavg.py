"""Plain federated averaging: the controller of the baselines."""

import inspect

from fl_components.controllers.staged import StagedController


class FedAvgController(StagedController):
    """Every round trains and averages; ``warmup_rounds`` has no meaning here, all rounds are one stage.

    Args:
        settings: see :class:`StagedController`. Others belong to the method whose job this baseline is a variant of, and
            are left alone.
    """

    def __init__(self, **settings):
        known = inspect.signature(StagedController).parameters
        super().__init__(**{name: value for name, value in settings.items() if name in known})

    def run(self) -> None:
        """R rounds of FedAvg."""
        model, _, first = self.start_run()
        for r in range(first, self.num_rounds):
            model, _ = self.train_round(model, "train", r, {})
            self.save_progress(model, r + 1, {})
        self.finish(model)
