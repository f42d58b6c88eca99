"""Networks of MONAI by name."""

import pytest
import torch
from monai.networks import nets

from fedmend.errors import FedMendError
from fedmend.learning.monai_networks import FAMILIES
from fedmend.learning.networks import build_network, initial_network
from fedmend.learning.weights import get_weights, set_weights
from fedmend.site.limits import step_bytes

# Small arguments for those that have none by default.
ARGUMENTS = {
    "EfficientNetBN": '(model_name="efficientnet-b0")',
    "ResNet": "(block='basic', layers=[1, 1, 1, 1], block_inplanes=[8, 8, 16, 16])",
    "AttentionUnet": "(channels=[8, 16], strides=[2])",
    "BasicUNet": "(features=[8, 8, 16, 16, 16, 8])",
    "DynUNet": "(kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2], filters=[4, 8, 8])",
    "FlexibleUNet": "(backbone='resnet10', decoder_channels=[32, 16, 8, 8, 8])",
}
LARGE = {"DenseNet169", "DenseNet201", "DenseNet264", "SENet154", "SEResNet101", "SEResNet152", "SEResNext101"}
LARGE |= {"resnet34", "resnet50", "resnet101"}  # differ from a listed one in depth alone
NAMES = [f"monai/{name}{ARGUMENTS.get(name, '')}" for name in FAMILIES if name not in LARGE]
SMALL = "monai/SegResNet(init_filters=8, blocks_down=[1, 1], blocks_up=[1])"


def images(model, shape=(64, 64)):
    return torch.rand(2, model.channels, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", NAMES)
def test_the_last_layer_takes_the_features_and_draws_nothing_in_training(name):
    model = initial_network(name, ("a", "b", "c"), 5)
    for _ in range(2):
        features, logits = model(images(model))
        assert torch.equal(logits, model.classifier(features))
    first = initial_network(name, ("a", "b", "c"), 5)(images(model))[1]
    torch.manual_seed(99)
    assert torch.equal(initial_network(name, ("a", "b", "c"), 5)(images(model))[1], first)
    if model.channels == 1:
        assert (features.shape[2:], logits.shape) == ((64, 64), (2, 4, 64, 64))
    else:
        assert (features.shape, logits.shape) == ((2, model.num_features), (2, 3))
    assert features.shape[1] == model.num_features
    assert {k.partition(".")[0] for k in model.state_dict()} == {"backbone", "classifier"}


@pytest.mark.parametrize("name", sorted(LARGE))
def test_every_name_is_one_of_monai_with_that_last_layer(name):
    with torch.device("meta"):
        assert build_network(f"monai/{name}", 3).classifier.out_features == 3


def test_the_whole_network_is_the_one_of_monai():
    model = build_network(SMALL, 1).eval()
    theirs = nets.SegResNet(
        spatial_dims=2, in_channels=1, out_channels=2, init_filters=8, blocks_down=(1, 1), blocks_up=(1,)
    )
    state = {k.removeprefix("backbone."): v for k, v in model.state_dict().items()}
    state |= {f"conv_final.2.conv.{k.partition('.')[2]}": v for k, v in state.items() if k.startswith("classifier.")}
    theirs.load_state_dict({k: v for k, v in state.items() if not k.startswith("classifier.")})
    assert torch.equal(theirs.eval()(images(model)), model(images(model))[1])


def test_weights_of_a_bundle_set_all_but_the_last_layer(tmp_path):
    theirs = nets.SegResNet(
        spatial_dims=2, in_channels=1, out_channels=5, init_filters=8, blocks_down=(1, 1), blocks_up=(1,)
    )
    torch.save(theirs.state_dict(), tmp_path / "model.pt")
    model = initial_network(SMALL, ("lesion",), 7, str(tmp_path / "model.pt"))
    assert torch.equal(model.backbone.convInit.conv.weight, theirs.convInit.conv.weight)
    assert torch.equal(model.classifier.weight, initial_network(SMALL, ("lesion",), 7).classifier.weight)


def test_weights_travel_and_memory_is_estimated():
    model, other = build_network(SMALL, 1), build_network(SMALL, 1)
    set_weights(other, get_weights(model))
    assert torch.equal(other(images(model))[1], model(images(model))[1])
    assert step_bytes(network=SMALL, num_classes=1, images=2, shape=(64, 64)) > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("UNet", f"job variable network: expected monai/ and one of {sorted(FAMILIES)}, with or without arguments in"),
        ("SegResNet" + "(" * 600, "job variable network: expected monai/ and one of"),
        ("../SegResNet", "job variable network: expected monai/ and one of"),
        ("SegResNet(8)", "job variable network: expected arguments of SegResNet as NAME=VALUE"),
        ("SegResNet(init_filters=print(1))", "job variable network: expected arguments of SegResNet as NAME=VALUE"),
        ("SegResNet(**{'init_filters': 8})", "job variable network: expected arguments of SegResNet as NAME=VALUE"),
        ("SegResNet(norm='a b')", "job variable network: expected arguments of SegResNet as NAME=VALUE"),
        (
            "SegResNet(init_filters=8, # x\rERROR: all is lost\r)",
            "job variable network: expected arguments of SegResNet as NAME=VALUE, values numbers up to 4096, words,"
            r" truth values or lists of them, got (init_filters=8, # x\rERROR: all is lost\r)",
        ),
        ("SegResNet(init_filters=8).eval()", "job variable network: expected arguments of SegResNet as NAME=VALUE"),
        ("SegResNet()(init_filters=8)", "job variable network: expected arguments of SegResNet as NAME=VALUE"),
        ("SegResNet(spatial_dims=3)", "job variable network: expected no argument that follows from the job, got"),
        ("DenseNet121(pretrained=True)", "job variable network: expected no argument that follows from the job"),
        ("DynUNet(deep_supr_num=1000000000)", "job variable network: expected arguments of DynUNet as NAME=VALUE"),
        ("ResNet(widen_factor=1e999)", "job variable network: expected arguments of ResNet as NAME=VALUE"),
        (
            "ResNet(block='basic', layers=[100000000, 1, 1, 1], block_inplanes=[8, 8, 8, 8])",
            "job variable network: expected arguments of ResNet as NAME=VALUE, values numbers up to 4096, words",
        ),
        (
            "ResNet(block='basic', layers=[501, -4000, 1, 1], block_inplanes=[8, 8, 8, 8])",
            "job variable network: expected at most 500 blocks as layers of ResNet, got [501, -4000, 1, 1]",
        ),
        ("SegResNet(blocks_up=(251, 250))", "job variable network: expected at most 500 blocks as blocks_up of SegRes"),
        ("SegResNet(depth=3)", "job variable network: expected arguments that MONAI's SegResNet takes, got TypeError"),
    ],
)
def test_another_network_or_arguments_that_do_not_fit_are_refused(words, sentence):
    with pytest.raises(FedMendError) as error:
        build_network(f"monai/{words}", 1)
    assert str(error.value).startswith(sentence)
