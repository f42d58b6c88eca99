"""Plain federated averaging: the controller of the baselines."""

from fl_components.controllers.staged import StagedController


class FedAvgController(StagedController):
    """Every round trains and averages, all rounds are one stage.

    Args:
        degree_over: without meaning; a baseline is run by naming this controller in the FedMLP job.
        prototype_weighting: without meaning, likewise.
        settings: see :class:`StagedController`; ``warmup_rounds`` has no meaning either.
    """

    def __init__(self, *, degree_over: str = "", prototype_weighting: str = "", **settings):
        super().__init__(**settings)
        self.warmup_rounds = 0

    def rounds(self) -> None:
        """R rounds of FedAvg."""
        model, _, first = self.start_run()
        for r in range(first, self.num_rounds):
            model, _ = self.train_round(model, "train", r, {})
            self.save_progress(model, r + 1, {})
        self.finish(model)
