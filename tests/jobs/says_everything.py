class Job:
    def run_job(self, ctx):
        ctx.progress()
        ctx.progress(12.5, "folding", {"eta_s": 3})
        ctx.metric("loss", 0.25)
        ctx.log('a "quoted" line\nand another')
        ctx.emit("structure", {"chain": "A", "residues": [1, 2]})
        ctx.emit("nothing")
        ctx.result("file:///out/1")
