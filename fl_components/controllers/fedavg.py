"""Plain federated averaging: the controller of the baselines."""

import inspect

from fl_components.controllers.staged import StagedController


class FedAvgController(StagedController):
    """Every round trains and averages, all rounds are one stage.

    Args:
        settings: see :class:`StagedController`. A baseline is run by naming this controller in the job of a method, so the
            settings of the method's own controller may be there too; they have no meaning, and neither has
            ``warmup_rounds``.
    """

    def __init__(self, **settings):
        known = inspect.signature(StagedController).parameters
        super().__init__(**{name: value for name, value in settings.items() if name in known})
        self.warmup_rounds = 0

    def rounds(self) -> None:
        """R rounds of FedAvg."""
        model, _, first = self.start_run()
        for r in range(first, self.num_rounds):
            model, _ = self.train_round(model, "train", r)
            self.save_progress(model, r + 1)
        self.finish(model)
