"""Design sequences for a folder of structures, one at a time, and keep each at once."""

import os
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).parent
MAX_COUNT = 1000


class Batch:
    """A run over many structures that is watched and can be cancelled after any design."""

    def initialise_runtime(self):
        """Load the network that the provider proteinmpnn holds too."""
        import design

        self.design = design
        self.model = design.build(
            SimpleNamespace(
                weights_root=os.environ["PROTEINMPNN_WEIGHTS"], manifest_dir=HERE
            )
        )

    def run_job(self, ctx):
        """Write designs.fasta: for each structure the native sequence, then its designs.

        Params: folder (of .pdb files) or structures (list of files), relative ones beside
        the manifest; count (8) of designs for each, temperature (0.1), seed (1), which
        begins anew with each structure. The same seed gives what proteinmpnn's
        design_sequence gives.
        """
        try:
            asked = Asked(ctx)
        except ValueError as exc:
            ctx.fail(str(exc))
            return
        path = Path(ctx.state_dir) / "designs.fasta"
        total = len(asked.structures) * asked.count
        kept = 0
        with path.open("w", encoding="utf-8") as fasta:
            for structure in asked.structures:
                for record in self.records(ctx, structure, asked):
                    fasta.write(record)
                    fasta.flush()
                    kept += not record.startswith(">native")
                    ctx.progress(
                        100.0 * kept / total, f"{structure.stem}: {kept}/{total}"
                    )
                if ctx.cancelled:
                    break
        if ctx.cancelled:
            ctx.log(f"cancelled: {kept} of {total} designs kept in {path}")
        ctx.result(path.as_uri())

    def records(self, ctx, structure, asked):
        """Draw a structure's designs, each as soon as it is there, until cancelled."""
        import torch

        torch.manual_seed(asked.seed)
        with torch.no_grad():
            backbone = self.design.Backbone(self.model, {"pdb": str(structure)})
            score = backbone.native_score()
            native = backbone.native_sequence()
            yield f">native {backbone.name} score={score:.4f}\n{native}\n"
            for number in range(1, asked.count + 1):
                if ctx.cancelled:
                    return
                drawn = backbone.design(asked.temperature)
                name = f"{backbone.name}_{number}"
                ctx.metric(f"recovery {name}", drawn["recovery"])
                yield (
                    f">{name} score={drawn['score']:.4f} "
                    f"recovery={drawn['recovery']:.4f}\n{drawn['sequence']}\n"
                )


class Asked:
    """What a job is asked for; raises ValueError for what it does not take."""

    def __init__(self, ctx):
        params = ctx.params
        self.count = int(params.get("count", 8))
        self.temperature = float(params.get("temperature", 0.1))
        self.seed = int(params.get("seed", 1))
        if not 0 < self.temperature <= 10 or not 1 <= self.count <= MAX_COUNT:
            raise ValueError(
                f"temperature {self.temperature} and count {self.count}: "
                f"above 0 up to 10, and 1 to {MAX_COUNT}, wanted"
            )
        self.structures = [self.place(ctx, name) for name in self.named(ctx, params)]
        missing = [str(path) for path in self.structures if not path.is_file()]
        if missing or not self.structures:
            found = ", ".join(missing) or "no .pdb file"
            raise ValueError(f"structures: {found} found, files that exist wanted")

    def named(self, ctx, params):
        if "structures" in params:
            return params["structures"]
        if "folder" not in params:
            raise ValueError("folder or structures wanted, neither given")
        return sorted(
            str(path) for path in self.place(ctx, params["folder"]).glob("*.pdb")
        )

    @staticmethod
    def place(ctx, name):
        return HERE / ctx.resolve(str(name))
