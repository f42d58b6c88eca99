"""The round of a method in which sites answer questions and train nothing."""

from torch import Tensor

from fedmend.errors import FedMendError
from fedmend.method import Round


class NoRound(Round):
    """Nothing is trained."""

    def loss(self, index: Tensor) -> Tensor:
        """There is none.

        Raises:
            FedMendError: always.
        """
        name = type(self.method).__name__
        raise FedMendError(f"method {name}: expected a question without training, got a training round")
