"""Settings that make no method are refused in one sentence."""

import math

import pytest
from factories import refused

from fedmend.baselines.adele import Adele
from fedmend.baselines.cbafed import CBAFedWorkflow
from fedmend.baselines.elr import ELR
from fedmend.baselines.fedcorr import FedCorr
from fedmend.baselines.fedcorr_masks import FedCorrMasks
from fedmend.baselines.fedcorr_stages import FedCorrWorkflow
from fedmend.baselines.fedfixmatch import FedFixMatch
from fedmend.baselines.fedirm import FedIRM
from fedmend.baselines.fedlsr import FedLSR
from fedmend.baselines.fedlsr_multilabel import MultiLabelFedLSR
from fedmend.baselines.fednoro_masks import FedNoRoMasks
from fedmend.baselines.fednoro_multilabel import MultiLabelFedNoRo
from fedmend.baselines.fixmatch import FixMatch
from fedmend.baselines.fpsl import FPSL
from fedmend.baselines.fssl import FSSL
from fedmend.baselines.moon import Moon
from fedmend.baselines.nr_dice import NRDice
from fedmend.baselines.rhfl import RHFL, RHFLWorkflow
from fedmend.baselines.rmd import RMD
from fedmend.baselines.rofl import RoFL
from fedmend.baselines.rscfed import RSCFed, RSCFedWorkflow
from fedmend.methods.fedpu import FedPU

LABEL_SETS = (FixMatch, FPSL, FSSL, Moon, FedPU)


@pytest.mark.parametrize(
    ("made", "setting", "expected"),
    [
        (Adele, {"consistency": -1}, ">= 0"),
        (Adele, {"threshold": 0.4}, "0.5 to 1"),
        (Adele, {"base_loss": "focal"}, "one of ['ce', 'dice']"),
        (CBAFedWorkflow, {"warmup_rounds": 0}, "at least 1"),
        (ELR, {"beta": 1.0}, "0 to below 1"),
        (ELR, {"weight": math.nan}, ">= 0"),
        (ELR, {"base_loss": "bce"}, "one of ['ce', 'dice']"),
        (FedCorr, {"beta": -1.0}, ">= 0"),
        (FedCorr, {"relabel_ratio": 2.0}, "0 to 1"),
        (FedCorr, {"confidence": -0.1}, "0 to 1"),
        (FedCorrMasks, {"base_loss": "focal"}, "one of ['ce', 'dice']"),
        (FedCorrWorkflow, {"iterations": 0}, "at least 1"),
        (FedCorrWorkflow, {"finetune_share": 0.0}, "above 0 to 1"),
        (FedCorrWorkflow, {"clean_threshold": 1.5}, "0 to 1"),
        (FedFixMatch, {"tau_positive": 0.4}, "0.5 to 1"),
        (FedFixMatch, {"tau_negative": 0.6}, "0 to 0.5"),
        (FedIRM, {"maximum": -1.0}, ">= 0"),
        (FedIRM, {"ema_decay": 1.0}, "0 to below 1"),
        (FedLSR, {"gamma": -1.0}, ">= 0"),
        (FedLSR, {"entropy_weight": math.inf}, ">= 0"),
        (FedLSR, {"warmup_share": 1.5}, "0 to 1"),
        (MultiLabelFedLSR, {"gamma": -1.0}, ">= 0"),
        (MultiLabelFedLSR, {"temperature": 0.0}, "> 0"),
        (FedNoRoMasks, {"temperature": 0}, "> 0"),
        (FedNoRoMasks, {"base_loss": "focal"}, "one of ['ce', 'dice']"),
        (MultiLabelFedNoRo, {"ramp_maximum": 1.5}, "0 to 1"),
        (MultiLabelFedNoRo, {"temperature": 0.0}, "> 0"),
        (FixMatch, {"loss_mean": "own"}, "one of ['parts', 'batch']"),
        (FixMatch, {"tau_positive": math.nan}, "0.5 to 1"),
        (FixMatch, {"tau_negative": 0.5}, "0 to below 0.5"),
        (FPSL, {"inner_rate": -0.1}, ">= 0"),
        (FPSL, {"inner_rate": math.inf}, ">= 0"),
        (FSSL, {"consistency_weight": math.nan}, ">= 0"),
        (FSSL, {"ramp_share": 1.1}, "0 to 1"),
        (Moon, {"mu": math.nan}, ">= 0"),
        (Moon, {"temperature": 0.0}, "> 0"),
        (NRDice, {"gamma": 0.9}, "1 to 2"),
        (NRDice, {"pooling": "all"}, "one of ['slice', 'batch']"),
        (NRDice, {"denominator": "cubes"}, "one of ['squares', 'sums']"),
        (NRDice, {"rows": "background"}, "one of ['lesion', 'both']"),
        (RHFL, {"local_loss": "mae"}, "one of ['sce', 'ce']"),
        (RHFLWorkflow, {"eta": -1}, ">= 0"),
        (RHFLWorkflow, {"normaliser": "max"}, "one of ['sum', 'abs']"),
        (RMD, {"drop": 1.0}, "0 to below 1"),
        (RMD, {"weight": math.inf}, ">= 0"),
        (RoFL, {"early_rounds": 0}, "at least 1"),
        (RSCFed, {"ema_decay": 1.0}, "0 to below 1"),
        (RSCFed, {"consistency_weight": -1.0}, ">= 0"),
        (RSCFedWorkflow, {"groups": 0}, "at least 1"),
        (RSCFedWorkflow, {"group_share": 0.0}, "above 0 to 1"),
        (RSCFedWorkflow, {"beta": -1.0}, ">= 0"),
        (FedPU, {"weight": math.nan}, ">= 0"),
        (FedPU, {"hidden_share": 1.0}, "0 to below 1"),
    ],
    ids=lambda value: getattr(value, "__name__", ", ".join(value) if isinstance(value, dict) else ""),
)
def test_a_setting_out_of_range_is_refused_by_its_name(made, setting, expected):
    ((name, value),) = setting.items()
    with refused(f"job variable {name}: expected {expected}, got {value!r}"):
        made(**({"local_iterations": 1} if made in LABEL_SETS else {}), **setting)
