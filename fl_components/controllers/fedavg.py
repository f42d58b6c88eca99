"""Plain federated averaging: the controller of the baselines."""

from fl_components.controllers.staged import StagedController


class FedAvgController(StagedController):
    """Every round trains and averages; ``warmup_rounds`` has no meaning here, all rounds are one stage."""

    def run(self) -> None:
        """R rounds of FedAvg."""
        model, _, first = self.start_run()
        for r in range(first, self.num_rounds):
            model, _ = self.train_round(model, "train", r, {})
            self.save_progress(model, r + 1, {})
        self.finish(model)
