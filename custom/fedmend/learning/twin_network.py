"""Two networks of one kind as one model, for methods in which two networks teach each other."""

from collections.abc import Callable

from torch import Tensor, nn


class TwinNetwork(nn.Module):
    """Two networks with different random starts; alike they would stay alike for ever.

    Messages and checkpoints are twice as large as those of one network.

    Args:
        network: number of classes → network.
        num_classes: C.
    """

    library_heads = ()

    def __init__(self, network: Callable[[int], nn.Module], num_classes: int):
        super().__init__()
        self.first, self.second = network(num_classes), network(num_classes)
        self.channels, self.num_features = self.first.channels, self.first.num_features

    @property
    def classifier(self) -> nn.Module:
        """Both classifiers."""
        return nn.ModuleList([network.get_submodule("classifier") for network in (self.first, self.second)])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, ...) images → features and logits of the first network, which is the one that is evaluated."""
        return self.first(images)
