"""The console command ``fedmend``: everything that a person types."""

import argparse
import contextlib
import json
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from fedmend.errors import FedMendError


def _given(args: argparse.Namespace, *names: str) -> dict:
    return {name: getattr(args, name) for name in names}


def _prepare_rsna_ich(args: argparse.Namespace) -> None:
    from fedmend.datasets.rsna_ich import prepare

    names = ("sites", "annotated_per_site", "rule", "split", "partition", "test_share", "val_share", "train_per_site")
    prepare(args.source, args.out, **_given(args, *names, "healthy_share", "window", "seed"), progress=print)
    print(f"{args.sites} site folders are in {args.out}")


def _prepare_rsna_ich_single(args: argparse.Namespace) -> None:
    from fedmend.datasets.rsna_ich import prepare_single_label

    given = _given(args, "split", "test_share", "window", "seed", "soft_labels")
    prepare_single_label(args.source, args.out, protocol=_protocol_of(args), **given, progress=print)


def _prepare_isic2019(args: argparse.Namespace) -> None:
    from fedmend.datasets.isic2019 import prepare

    given = _given(args, "split", "test_share", "seed", "soft_labels")
    prepare(args.source, args.out, protocol=_protocol_of(args), **given, progress=print)


def _prepare_cxr14(args: argparse.Namespace) -> None:
    from fedmend.datasets.cxr14 import PROTOCOLS, prepare

    names = ("sites", "classes_per_site", "assignment", "view", "top", "split", "test_share", "val_share", "seed")
    given = {k: v for k, v in _given(args, *names, "train_per_site").items() if v is not None}
    if given.get("view") == "all":
        given["view"] = None
    if args.classes:
        given = {"top": None, **given, "classes": args.classes.split(",")}
    prepare(args.source, args.out, **{**PROTOCOLS[args.protocol], **given}, progress=print)


def _prepare_isic2018(args: argparse.Namespace) -> None:
    from fedmend.datasets.isic2018 import prepare

    given = _given(args, "sites", "classes_per_site", "assignment", "split", "train_per_site", "seed")
    prepare(args.source, args.out, **given, progress=print)


def _prepare_brain_mri(args: argparse.Namespace) -> None:
    from fedmend.datasets.brain_mri import prepare

    prepare(args.source, args.out, train_per_site=args.train_per_site, seed=args.seed)
    print(f"3 site folders are in {args.out}")


def _prepare_brain_mri_single(args: argparse.Namespace) -> None:
    from fedmend.datasets.brain_mri import prepare_single_label

    protocol = _protocol_of(args)
    prepare_single_label(args.source, args.out, protocol=protocol, soft_labels=args.soft_labels, progress=print)


def _prepare_brain_mri_sets(args: argparse.Namespace) -> None:
    from fedmend.datasets.brain_mri import prepare_label_sets

    prepare_label_sets(args.source, args.out, **_given(args, "sites", "classes_per_site", "seed"))
    print(f"{args.sites} site folders are in {args.out}")


def _prepare_lesions(args: argparse.Namespace) -> None:
    from fedmend.datasets import lung, ms

    given = {k: v for k, v in _given(args, "sites", "m", "completeness").items() if v is not None}
    if "completeness" in given and len(given) > 1:
        raise FedMendError(f"prepare {args.dataset}: expected --completeness or --sites and --m, got both")
    prepare = {"ms": ms.prepare, "lung": lung.prepare}[args.dataset]
    prepare(args.source, args.out, **given, **_given(args, "test_share", "seed"), progress=print)


def _phantom_ich(args: argparse.Namespace) -> None:
    from fedmend.datasets.phantom_sites import MissingClassPhantom, make_phantom

    given = _given(args, "sites", "annotated_per_site", "rule", "pixels", "seed")
    make_phantom(args.out, MissingClassPhantom(images=args.slices, **given), progress=print)
    print(
        f"PHANTOM: {args.slices} synthetic slices in {args.out / 'download'}, {args.sites} site folders in {args.out}"
    )


def _phantom_label_sets(args: argparse.Namespace) -> None:
    from fedmend.datasets.phantom_sites import make_phantom, phantom_spec

    given = _given(args, *args.fields)
    make_phantom(args.out, phantom_spec({"dataset": args.dataset, **given}), progress=print)
    print(
        f"PHANTOM: {args.images} synthetic images in {args.out / 'download'}, {args.sites} site folders in {args.out}"
    )


def _phantom_noisy(args: argparse.Namespace) -> None:
    from dataclasses import asdict

    from fedmend.datasets.phantom_sites import NoisyLabelPhantom, make_phantom

    given = _given(args, "dataset", "images", "pixels", "seed")
    make_phantom(args.out, NoisyLabelPhantom(**given, **asdict(_protocol_of(args))), progress=print)
    print(
        f"PHANTOM: {args.images} synthetic images in {args.out / 'download'}, {args.sites} site folders in {args.out}"
    )


def _phantom_lesions(args: argparse.Namespace) -> None:
    from fedmend.datasets.phantom_sites import PartlyAnnotatedPhantom, make_phantom

    given = _given(args, "dataset", "images", "sites", "pixels", "depth", "m", "test_share", "seed")
    make_phantom(args.out, PartlyAnnotatedPhantom(**given), progress=print)
    print(
        f"PHANTOM: {args.images} synthetic volumes in {args.out / 'download'}, {args.sites} site folders in {args.out}"
    )


def _configure(args: argparse.Namespace) -> None:
    from fl_components.simulate import configure_job, parse_assignments

    if args.out.exists():
        raise FedMendError(f"configure: expected a new folder, {args.out} exists")
    configure_job(args.job, args.out, parse_assignments(args.set), variant=args.variant, sites=args.sites)
    print(f"job written to {args.out}")


def _simulate(args: argparse.Namespace) -> None:
    from fl_components.simulate import RUN_FOLDER, mean_and_sd, parse_assignments, simulate

    runs, base = [], args.workspace or Path("runs") / args.job.resolve().name
    for seed in args.seeds or [None]:
        variables = parse_assignments(args.set) | ({} if seed is None else {"seed": seed})
        workspace = base if seed is None else base / f"seed-{seed}"
        result = simulate(
            args.job,
            workspace,
            threads=args.threads,
            variables=variables,
            variant=args.variant,
            sites=args.sites,
            site_settings=parse_assignments(args.site),
            quiet=args.quiet,
        )
        runs.append({"seed": seed, **result})
        if seed is not None:
            print(f"seed {seed}: {json.dumps(result['final'])}", flush=True)
        elif args.quiet:
            print(f"finished; records and report.html are in {workspace / RUN_FOLDER}")
    if args.seeds:
        (base / "seeds.json").write_text(json.dumps(runs, indent=2) + "\n")
        print(f"final global model, mean ± sd over {len(runs)} seeds:")
        print("\n".join(mean_and_sd(runs)))


def _quiet_flare() -> None:
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)  # what goes wrong is said in a sentence of ours


def _submit(args: argparse.Namespace) -> None:
    from fl_components.simulate import parse_assignments
    from fl_components.submit import configured, fetch, follow, open_session, submit_job, what_came_out

    if bool(args.job) == bool(args.job_id):
        raise FedMendError(f"submit: expected a job folder or --job-id, got {'both' if args.job else 'none'}")
    _quiet_flare()
    left = threading.Event()

    def leave(*_) -> None:
        left.set()  # FLARE swallows the exception where it waits for an answer
        raise KeyboardInterrupt

    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, leave))
        if args.job:  # a mistyped variable is refused before the server is asked
            given = parse_assignments(args.set)
            job = stack.enter_context(configured(args.job, given, **_given(args, "variant", "sites")))
        session = stack.enter_context(open_session(args.kit))
        job_id = args.job_id or submit_job(session, job)
        back = f"fedmend submit --kit {args.kit} --job-id {job_id} --out {args.out}"
        print(f"job {job_id}; Ctrl-C leaves it running, and this comes back to it: {back}", flush=True)
        follow(session, job_id, show=_show, left=left.is_set)
        folder = fetch(session, job_id, args.out)
    print("\n".join(what_came_out(folder)))


def _poc(args: argparse.Namespace) -> None:
    from fl_components.federation import poc
    from fl_components.simulate import parse_assignments
    from fl_components.submit import what_came_out

    _quiet_flare()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # by way of every finally, which stops the federation
    folder = poc(
        args.job,
        args.workspace,
        variables=parse_assignments(args.set),
        site_settings=parse_assignments(args.site),
        show=_show,
        **_given(args, "variant", "sites"),
    )
    print("\n".join(what_came_out(folder)))


def _show(line: str) -> None:
    print(line, flush=True)


def _ledger_show(args: argparse.Namespace) -> None:
    from fedmend.ledger import read_history

    rows = [r for r in read_history(args.ledger) if args.all or r["in_force"]]
    for r in rows[-args.last :]:
        state = "" if r["in_force"] else "  (taken back)"
        old = "blank" if r["old"] < 0 else r["old"]
        print(
            f"round {r['round'] + 1:4d}  {r['image']}  {r['class']}: {old} -> {r['new']}  confidence {r['confidence']:.4f}  {r['rule']}{state}"
        )
    shown = f"newest {args.last} of " if len(rows) > args.last else ""
    print(f"{shown}{len(rows)} repairs; originals are unchanged")


def _ledger_export(args: argparse.Namespace) -> None:
    from fedmend.ledger import to_csv

    print(f"{to_csv(args.ledger, args.out)} entries written to {args.out}")


def _ledger_undo(args: argparse.Namespace) -> None:
    from fedmend.ledger import undo_file

    count = undo_file(args.ledger, rule=args.rule, from_round=args.from_round - 1)
    print(f"{count} repairs taken back; they stay in the history")


def _report(args: argparse.Namespace) -> None:
    from fedmend.reporting import summary_text, write_report

    write_report(args.folder)
    print(summary_text(args.folder))


def _table(args: argparse.Namespace) -> None:
    from fedmend.run_folder import load_run
    from fedmend.tables import comparison

    runs = {}
    for word in args.runs:
        name, equals, folder = word.partition("=")
        if not (name and equals and folder):
            raise FedMendError(f"table: expected NAME=FOLDER, got {word!r}")
        runs.setdefault(name, []).extend(map(load_run, _run_folders(Path(folder), name)))
    texts = comparison(runs)
    args.out.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (args.out / file).write_text(text, encoding="utf-8")
    print("\n".join(text for file, text in texts.items() if file.endswith(".md")) + f"\nwritten to {args.out}")


def _run_folders(folder: Path, name: str) -> list[Path]:
    """The run folders behind what a person names: one itself, that of a simulator workspace, or those of its seeds."""
    from fl_components.simulate import RUN_FOLDER

    workspaces = sorted(f for f in folder.glob("seed-*") if f.is_dir()) or [folder]  # beside them lie logs
    found = [next((f for f in (w, w / RUN_FOLDER) if (f / "run.json").is_file()), None) for w in workspaces]
    if None in found:
        where = workspaces[found.index(None)]
        raise FedMendError(
            f"table, {name}: expected a run folder or a simulator workspace, found no run.json in {where}"
        )
    return found


def _sitecheck(args: argparse.Namespace) -> None:
    from fl_components.sitecheck import SiteCheck, sitecheck

    classes = args.classes.split(",") if args.classes else ()
    check = SiteCheck(args.folder, classes=classes, **_given(args, "kit", "job", "max_unreadable"))
    sitecheck(check, show=lambda line: print(line, flush=True), color=sys.stdout.isatty())


def _share(text: str) -> float | None:
    try:
        return None if text == "all" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number or 'all', got {text!r}") from None


def _seeds(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers like 0,1,2, got {text!r}") from None


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers like 0.3,0.7, got {text!r}") from None


def _missing_class_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sites", type=int, default=5, help="number of sites (default 5)")
    parser.add_argument(
        "--annotated-per-site", type=int, default=1, help="classes that each site annotates (default 1)"
    )
    parser.add_argument("--rule", choices=["one_each", "random"], default="one_each", help="how they are chosen")
    parser.add_argument("--seed", type=int, default=1037)


def _noise_arguments(
    parser: argparse.ArgumentParser, sites: int = 20, alpha: float = 2.0, presence: float = 0.9
) -> None:
    parser.add_argument("--sites", type=int, default=sites, help=f"number of sites (default {sites})")
    parser.add_argument("--alpha", type=float, default=alpha, help=f"Dirichlet concentration (default {alpha})")
    parser.add_argument(
        "--presence", type=float, default=presence, help=f"probability that a site owns a class (default {presence})"
    )
    parser.add_argument("--partition-seed", type=int, default=100)
    parser.add_argument("--noisy-share", type=float, default=0.4, help="share of noisy sites, rho (default 0.4)")
    parser.add_argument("--noise-low", type=float, default=0.5, help="smallest noise rate (default 0.5)")
    parser.add_argument("--noise-high", type=float, default=0.7, help="largest noise rate (default 0.7)")
    parser.add_argument(
        "--noise",
        choices=["instance", "uniform"],
        default="instance",
        help="instance: an annotator network, trained at each noisy site, confuses what it finds hard",
    )
    parser.add_argument("--noise-seed", type=int, default=0)


def _protocol_of(args: argparse.Namespace):
    from dataclasses import fields

    from fedmend.datasets.noisy_sites import NoiseProtocol

    return NoiseProtocol(**{f.name: getattr(args, f.name) for f in fields(NoiseProtocol)})


def _job_arguments(parser: argparse.ArgumentParser, **job) -> None:
    parser.add_argument("job", type=Path, help="job folder, e.g. jobs/fedmlp_ich", **job)
    parser.add_argument(
        "--variant", default="", help="name of a file in the job's variants folder, e.g. paper or fedavg"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="VARIABLE=VALUE", help="override job variables")


def _subcommands(commands, name: str, summary: str, what: str):
    return commands.add_parser(name, help=summary).add_subparsers(required=True, metavar=what)


def _soft_labels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--soft-labels", type=Path, help="CSV with class probabilities per image, instead of annotator networks"
    )


def _source_and_out(parser: argparse.ArgumentParser, source: str) -> None:
    parser.add_argument("source", type=Path, help=source)
    parser.add_argument("out", type=Path, help="folder for site-1, site-2, ...")


def _add_prepare(commands) -> None:
    prepare = _subcommands(commands, "prepare", "turn an official download into site folders", "DATASET")
    rsna_folder = "folder with stage_2_train.csv and stage_2_train/"
    mri_folder = "folder with labels.csv (image, diagnosis, split) and the images"
    window = {"default": "brain", "help": "brain, subdural, bone or file"}

    rsna = prepare.add_parser("rsna-ich", help="RSNA 2019 intracranial hemorrhage, classes missing per site")
    _source_and_out(rsna, rsna_folder)
    _missing_class_arguments(rsna)
    rsna.add_argument(
        "--split",
        choices=["patient", "slice"],
        default="patient",
        help="slice is the paper's split, which leaks patients",
    )
    rsna.add_argument(
        "--partition", choices=["iid", "station"], default="iid", help="station keeps each scanner at one site"
    )
    rsna.add_argument("--test-share", type=float, default=0.3)
    rsna.add_argument("--val-share", type=float, default=0.1)
    rsna.add_argument(
        "--train-per-site", type=int, default=None, help="cap of each site's training slices (paper: 5000)"
    )
    rsna.add_argument(
        "--healthy-share",
        type=_share,
        default=0.475,
        help="share of slices without hemorrhage, or 'all' (default 0.475)",
    )
    rsna.add_argument("--window", **window)
    rsna.set_defaults(run=_prepare_rsna_ich)

    single = prepare.add_parser("rsna-ich-single", help="its slices with exactly one subtype, some sites noisy")
    _source_and_out(single, rsna_folder)
    _noise_arguments(single)
    single.add_argument(
        "--split",
        choices=["patient", "slice"],
        default="patient",
        help="slice is the paper's split, which leaks patients",
    )
    single.add_argument("--test-share", type=float, default=0.3)
    single.add_argument("--window", **window)
    single.add_argument("--seed", type=int, default=1037, help="of the test split")
    _soft_labels(single)
    single.set_defaults(run=_prepare_rsna_ich_single)

    isic = prepare.add_parser("isic2019", help="ISIC 2019 dermoscopy, some sites noisy")
    _source_and_out(isic, "folder with ISIC_2019_Training_Input/, ..._GroundTruth.csv and ..._Metadata.csv")
    _noise_arguments(isic, alpha=1.5, presence=0.99)
    isic.add_argument(
        "--split",
        choices=["lesion", "image"],
        default="lesion",
        help="image is the paper's split, which leaks lesions",
    )
    isic.add_argument("--test-share", type=float, default=0.3)
    isic.add_argument("--seed", type=int, default=1037, help="of the test split")
    _soft_labels(isic)
    isic.set_defaults(run=_prepare_isic2019)

    chest = prepare.add_parser("cxr14", help="NIH ChestX-ray14, findings missing per site")
    _source_and_out(chest, "folder with Data_Entry_2017.csv, the two lists and the films")
    chest.add_argument(
        "--protocol",
        choices=["fedlsm", "fedmlp"],
        default="fedlsm",
        help="fedlsm: 14 findings, 3 at each of 8 sites; fedmlp: PA films, 8 findings, 1 at each of 8 sites",
    )
    chest.add_argument("--sites", type=int)
    chest.add_argument("--classes-per-site", type=int)
    chest.add_argument("--assignment", choices=["dealt", "released", "one_each", "random"])
    chest.add_argument("--view", choices=["all", "PA", "AP"])
    chest.add_argument("--top", type=int, help="only the findings with the most positives")
    chest.add_argument("--classes", default="", help="only these findings, comma-separated, instead of --top")
    chest.add_argument("--split", choices=["official", "patient", "image"], help="image leaks patients")
    chest.add_argument("--test-share", type=float)
    chest.add_argument("--val-share", type=float)
    chest.add_argument("--train-per-site", type=int)
    chest.add_argument("--seed", type=int)
    chest.set_defaults(run=_prepare_cxr14)

    isic18 = prepare.add_parser("isic2018", help="ISIC 2018 task 3 (HAM10000), diagnoses missing per site")
    _source_and_out(isic18, "folder with ISIC2018_Task3_Training_Input/ and the ground truth")
    isic18.add_argument("--sites", type=int, default=5)
    isic18.add_argument("--classes-per-site", type=int, default=3)
    isic18.add_argument("--assignment", choices=["random", "released"], default="random")
    isic18.add_argument(
        "--split",
        choices=["lesion", "image"],
        default="lesion",
        help="image is the released split, which leaks lesions",
    )
    isic18.add_argument("--train-per-site", type=int, default=None)
    isic18.add_argument("--seed", type=int, default=523)
    isic18.set_defaults(run=_prepare_isic2018)

    mri = prepare.add_parser("brain-mri", help="brain tumour MR slices: three sites, each annotates one tumour")
    _source_and_out(mri, mri_folder)
    mri.add_argument(
        "--train-per-site", type=int, default=None, help="cap of each site's training slices (default: all)"
    )
    mri.add_argument("--seed", type=int, default=1037)
    mri.set_defaults(run=_prepare_brain_mri)

    four = prepare.add_parser("brain-mri-single", help="the same slices with four diagnoses, some sites noisy")
    _source_and_out(four, mri_folder)
    _noise_arguments(four)
    _soft_labels(four)
    four.set_defaults(run=_prepare_brain_mri_single)

    sets = prepare.add_parser("brain-mri-sets", help="the same four diagnoses, some of them missing per site")
    _source_and_out(sets, mri_folder)
    sets.add_argument("--sites", type=int, default=4)
    sets.add_argument("--classes-per-site", type=int, default=2)
    sets.add_argument("--seed", type=int, default=1037)
    sets.set_defaults(run=_prepare_brain_mri_sets)

    for name, summary, source, levels in (
        ("ms", "MS lesions in FLAIR (MSSEG-1, open_ms_data)", "folder with one or both downloads", "0..3"),
        ("lung", "COVID-19-20 lung lesions in CT", "folder with Train/", "0..2"),
    ):
        lesions = prepare.add_parser(name, help=f"{summary}, a part of the lesions annotated")
        _source_and_out(lesions, source)
        lesions.add_argument("--sites", type=int, help="number of sites, 1..4 (default 4)")
        lesions.add_argument("--m", type=int, help=f"the paper's level of incompleteness, {levels} (default 0)")
        lesions.add_argument(
            "--completeness",
            type=_shares,
            help="share of lesions that each site keeps, e.g. 0.3,0.7, instead of --sites and --m",
        )
        lesions.add_argument("--test-share", type=float, default=0.2)
        lesions.add_argument("--seed", type=int, default=1037)
        lesions.set_defaults(run=_prepare_lesions, dataset=name)


def _add_phantom(commands) -> None:
    phantom = _subcommands(commands, "phantom", "write synthetic data", "DATASET")
    ich = phantom.add_parser(
        "ich", help="CT head slices with hemorrhage, as DICOM in the RSNA layout, and site folders"
    )
    ich.add_argument("out", type=Path)
    ich.add_argument("--slices", type=int, default=2000)
    ich.add_argument("--pixels", type=int, default=128)
    _missing_class_arguments(ich)
    ich.set_defaults(run=_phantom_ich)

    single = phantom.add_parser("ich-single", help="the same slices; sites get those with one subtype, some are noisy")
    _noise_arguments(single, sites=8)
    single.set_defaults(dataset="ich_single", images=9600, pixels=64)
    isic = phantom.add_parser("isic2019", help="dermoscopic pictures in the ISIC 2019 layout, and sites, some noisy")
    _noise_arguments(isic, sites=8, alpha=1.5, presence=0.99)
    isic.set_defaults(dataset="isic2019", images=3000, pixels=96)
    for noisy in (single, isic):
        noisy.set_defaults(run=_phantom_noisy)

    chest = phantom.add_parser(
        "cxr14", help="chest films in the ChestX-ray14 layout, and sites that label some findings"
    )
    chest.add_argument("--sites", type=int, default=8, help="number of sites (default 8)")
    chest.add_argument("--protocol", choices=["fedlsm", "fedmlp"], default="fedlsm", help="see prepare cxr14")
    chest.set_defaults(
        dataset="cxr14", images=4800, pixels=64, fields=("images", "sites", "pixels", "seed", "protocol")
    )
    isic18 = phantom.add_parser("isic2018", help="dermoscopic pictures in the ISIC 2018 layout, and sites likewise")
    isic18.add_argument("--sites", type=int, default=5, help="number of sites (default 5)")
    isic18.add_argument("--classes-per-site", type=int, default=3)
    fields = ("images", "sites", "pixels", "seed", "classes_per_site")
    isic18.set_defaults(dataset="isic2018", images=2500, pixels=96, fields=fields)
    for sets in (chest, isic18):
        sets.set_defaults(run=_phantom_label_sets)
    for parser in (single, isic, chest, isic18):
        parser.add_argument("out", type=Path)
        parser.add_argument("--images", type=int, help=f"default {parser.get_default('images')}")
        parser.add_argument("--pixels", type=int, help=f"default {parser.get_default('pixels')}")
        parser.add_argument("--seed", type=int, default=1037, help="of images and test split")

    for name, summary, levels in (
        ("ms", "FLAIR head volumes with MS lesions in the MSSEG-1 layout", "0..3"),
        ("lung", "CT thorax volumes with ground-glass patches in the COVID-19-20 layout", "0..2"),
    ):
        lesions = phantom.add_parser(name, help=f"{summary}, and sites that annotate a part of them")
        lesions.add_argument("out", type=Path)
        lesions.add_argument("--images", type=int, default=20, help="number of volumes (default 20)")
        lesions.add_argument("--sites", type=int, default=4, help="number of sites, 1..4 (default 4)")
        lesions.add_argument("--pixels", type=int, default=64, help="rows and columns of a slice (default 64)")
        lesions.add_argument("--depth", type=int, default=24, help="slices of a volume (default 24)")
        lesions.add_argument("--m", type=int, default=0, help=f"level of incompleteness, {levels} (default 0)")
        lesions.add_argument("--test-share", type=float, default=0.4)
        lesions.add_argument("--seed", type=int, default=1037, help="of volumes, test split and lesion removal")
        lesions.set_defaults(run=_phantom_lesions, dataset=name)


def _add_jobs(commands) -> None:
    configure = commands.add_parser("configure", help="copy a job with other variables, ready to submit")
    _job_arguments(configure)
    configure.add_argument("out", type=Path)
    configure.add_argument("--sites", type=int, default=0, help="sites named in meta.json (default: as in the job)")
    configure.set_defaults(run=_configure)

    simulate = commands.add_parser("simulate", help="run a job in FLARE's simulator")
    _job_arguments(simulate)
    simulate.add_argument(
        "--workspace",
        type=Path,
        help="new folder or one of an earlier run, which is emptied (default: runs/ and the job's name)",
    )
    simulate.add_argument("--threads", type=int, default=1, help="sites that run at the same time")
    simulate.add_argument("--sites", type=int, default=0, help="number of sites (default: as in the job)")
    _site_settings(simulate)
    simulate.add_argument(
        "--seeds", type=_seeds, default=[], help="several runs, e.g. 0,1,2; prints mean and standard deviation"
    )
    simulate.add_argument(
        "--quiet", action="store_true", help="keep the simulator's output in a file beside the workspace"
    )
    simulate.set_defaults(run=_simulate)


def _add_federation(commands) -> None:
    submit = commands.add_parser("submit", help="run a job on a provisioned federation and fetch its result")
    _job_arguments(submit, nargs="?")
    submit.add_argument("--kit", type=Path, required=True, help="startup kit of the lead researcher")
    submit.add_argument("--sites", type=int, default=0, help="sites named in meta.json (default: as in the job)")
    submit.add_argument("--job-id", default="", help="instead of a job folder: come back to a job")
    submit.add_argument("--out", type=Path, default=Path("runs/results"), help="default runs/results")
    submit.set_defaults(run=_submit)

    poc = commands.add_parser("poc", help="run a job on a real federation of this machine that exists for this job")
    _job_arguments(poc)
    poc.add_argument("--workspace", type=Path, required=True, help="new or empty folder for kits, state and result")
    poc.add_argument("--sites", type=int, default=0, help="number of sites (default: as in the job)")
    _site_settings(poc)
    poc.set_defaults(run=_poc)


def _site_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--site",
        nargs="+",
        default=[],
        metavar="FIELD=VALUE",
        help="override fields of fedmend.json, e.g. data_root=/data/{SITE_NAME}",
    )


def _add_ledger(commands) -> None:
    ledger = _subcommands(commands, "ledger", "what was changed in the labels of a site", "ACTION")
    show = ledger.add_parser("show", help="print repaired labels")
    show.add_argument("ledger", type=Path, help="ledger.sqlite in the site's state_dir")
    show.add_argument("--last", type=int, default=50, help="newest entries to print (default 50)")
    show.add_argument("--all", action="store_true", help="also those that were taken back")
    show.set_defaults(run=_ledger_show)
    export = ledger.add_parser("export", help="write the whole history as CSV")
    export.add_argument("ledger", type=Path)
    export.add_argument("out", type=Path)
    export.set_defaults(run=_ledger_export)
    undo = ledger.add_parser("undo", help="take repaired labels back")
    undo.add_argument("ledger", type=Path)
    undo.add_argument("--rule", default="*", help="one rule (default: all)")
    undo.add_argument("--from-round", type=int, default=1, help="first round to take back (default 1 = everything)")
    undo.set_defaults(run=_ledger_undo)


def _add_checks(commands) -> None:
    report = commands.add_parser("report", help="write report.html of a run folder again")
    report.add_argument("folder", type=Path, help="run folder, with run.json")
    report.set_defaults(run=_report)

    table = commands.add_parser("table", help="compare the final models of several runs, as Markdown and CSV")
    table.add_argument(
        "runs",
        nargs="+",
        metavar="NAME=FOLDER",
        help="a row and its run folder, simulator workspace or workspace of several seeds; NAME again adds runs to its row",
    )
    table.add_argument("--out", type=Path, required=True, help="folder for per_class and macro, .md and .csv")
    table.set_defaults(run=_table)

    check = commands.add_parser("sitecheck", help="what hospital IT runs before joining: one line per check")
    check.add_argument("folder", type=Path, nargs="?", help="site folder (default: what the kit's fedmend.json names)")
    check.add_argument(
        "--kit", type=Path, help="startup kit of the site: checks its settings, policy and connection too"
    )
    wanted = check.add_mutually_exclusive_group()
    wanted.add_argument("--job", type=Path, help="job folder: checks classes, method and class policy against it")
    wanted.add_argument(
        "--classes", default="", help="the job's classes, comma-separated (default: those of site.json)"
    )
    check.add_argument("--max-unreadable", type=int, help="default: what the kit's fedmend.json says, or 0")
    check.set_defaults(run=_sitecheck)


def build_parser() -> argparse.ArgumentParser:
    """The command line of ``fedmend``."""
    parser = argparse.ArgumentParser(prog="fedmend", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_prepare, _add_phantom, _add_jobs, _add_federation, _add_ledger, _add_checks):
        add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; bad input is one sentence on stderr and exit code 1."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        args.run(args)
    except FedMendError as e:
        print(f"fedmend: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
