"""Print a request for a backbone of so many residues: `python accept_requests.py SIZE`.

The backbone is an ideal alpha helix, built from the bond lengths and angles of peptides
(in Angstrom and degrees; Engh and Huber 1991), so that no structure of any size has to
be kept here.
"""

import json
import math
import sys

N_CA, CA_C, C_N, C_O = 1.458, 1.525, 1.329, 1.231
N_CA_C, CA_C_N, C_N_CA, CA_C_O = 111.0, 117.2, 121.7, 120.1
PHI, PSI, OMEGA = -57.8, -47.0, 180.0
RESIDUES = ("ALA", "GLU", "LEU", "LYS", "ILE", "GLN", "ARG", "VAL", "SER", "ASP")


def backbone(size):
    """Give N, CA, C and O of each residue, the middle of the helix at the origin."""
    n = (0.0, 0.0, 0.0)
    ca = (N_CA, 0.0, 0.0)
    turn = math.radians(180.0 - N_CA_C)
    c = (N_CA + CA_C * math.cos(turn), CA_C * math.sin(turn), 0.0)
    residues = []
    for _ in range(size):
        o = placed(n, ca, c, C_O, CA_C_O, PSI + 180.0)
        residues.append((n, ca, c, o))
        following = placed(n, ca, c, C_N, CA_C_N, PSI)
        next_ca = placed(ca, c, following, N_CA, C_N_CA, OMEGA)
        n, ca, c = following, next_ca, placed(c, following, next_ca, CA_C, N_CA_C, PHI)
    middle = [sum(atoms[1][axis] for atoms in residues) / size for axis in range(3)]
    return [tuple(minus(atom, middle) for atom in atoms) for atoms in residues]


def placed(a, b, c, length, angle, dihedral):
    """Give the atom that follows three others."""
    along = unit(minus(c, b))
    normal = unit(cross(minus(b, a), along))
    aside = cross(normal, along)
    bend, twist = math.radians(angle), math.radians(dihedral)
    parts = (
        -length * math.cos(bend),
        length * math.sin(bend) * math.cos(twist),
        length * math.sin(bend) * math.sin(twist),
    )
    return tuple(
        c[i] + parts[0] * along[i] + parts[1] * aside[i] + parts[2] * normal[i]
        for i in range(3)
    )


def minus(a, b):
    return tuple(x - y for x, y in zip(a, b, strict=True))


def cross(a, b):
    return (
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    )


def unit(a):
    length = math.sqrt(sum(x * x for x in a))
    return tuple(x / length for x in a)


def pdb(size):
    """Write the backbone in the columns of a PDB file, one chain."""
    lines, serial = [], 0
    for number, atoms in enumerate(backbone(size), start=1):
        residue = RESIDUES[number % len(RESIDUES)]
        for name, (x, y, z) in zip(("N", "CA", "C", "O"), atoms, strict=True):
            serial += 1
            lines.append(
                f"ATOM  {serial:5d}  {name:<3} {residue} A{number:4d}    "
                f"{x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00           {name[0]}"
            )
    return "\n".join([*lines, "TER", "END", ""])


if __name__ == "__main__":
    request = {
        "op": "design_sequence",
        "pdb_text": pdb(int(sys.argv[1])),
        "temperature": 0.1,
        "seed": 42,
    }
    print(json.dumps(request))
