"""All methods by name. A method of another package registers under the entry point group `fedrec.methods`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache

from fedrec.errors import FedrecError, FedrecWarning, unknown
from fedrec.federation.contract import Method
from fedrec.methods import plugins
from fedrec.methods.cgfedrec import CGFedRec
from fedrec.methods.cofedrec import CoFedRec
from fedrec.methods.cs_fedncf import CsFedNCF
from fedrec.methods.cs_mf import CsMF
from fedrec.methods.cs_ncf import CsNCF
from fedrec.methods.cs_pfedrec import CsPFedRec
from fedrec.methods.ease import Ease
from fedrec.methods.fedatt import FedAtt
from fedrec.methods.fedavg import FedAvg
from fedrec.methods.fedca import FedCA
from fedrec.methods.fedcia import FedCIA
from fedrec.methods.feddae import FedDAE
from fedrec.methods.feddcn import FedDCN
from fedrec.methods.fedfast import FedFast
from fedrec.methods.fedgram import FedGram
from fedrec.methods.fedmf import FedMF
from fedrec.methods.fedmvmf import FedMVMF
from fedrec.methods.fedrap import FedRAP
from fedrec.methods.fedrkg import FedRKG
from fedrec.methods.fedvbpr import FedVBPR
from fedrec.methods.gar import GAR
from fedrec.methods.gfcf import CentralGFCF
from fedrec.methods.gpfedrec import GPFedRec
from fedrec.methods.heater import Heater
from fedrec.methods.ifedrec import IFedRec
from fedrec.methods.ifedrec_lan import IFedRecLAN
from fedrec.methods.kinds import kinds_of
from fedrec.methods.lightgcn import CentralLightGCN
from fedrec.methods.local import Local
from fedrec.methods.mf import CentralMF
from fedrec.methods.neumf import CentralNeuMF
from fedrec.methods.perfedrec import PerFedRec
from fedrec.methods.pfedgraph import PFedGraph
from fedrec.methods.pfedrec import PFedRec
from fedrec.methods.popularity import Popularity
from fedrec.methods.sasrec import CentralSASRec

BUILT_IN: tuple[type[Method], ...] = (
    Popularity,
    Local,
    FedMF,
    FedAvg,
    FedFast,
    FedAtt,
    FedCA,
    FedCIA,
    PFedRec,
    CGFedRec,
    FedRKG,
    GPFedRec,
    CoFedRec,
    FedRAP,
    FedDAE,
    PFedGraph,
    PerFedRec,
    IFedRec,
    IFedRecLAN,
    FedMVMF,
    CsFedNCF,
    CsPFedRec,
    FedVBPR,
    FedDCN,
    FedGram,
    CentralMF,
    CsMF,
    CsNCF,
    Heater,
    GAR,
    CentralLightGCN,
    CentralGFCF,
    CentralNeuMF,
    CentralSASRec,
    Ease,
)


@cache
def _registered() -> tuple[dict[str, type[Method]], dict[str, str]]:
    """All methods that can be used, by name; those of other packages that cannot, with the reason."""
    own = {method.name: method for method in BUILT_IN}
    others, broken = plugins.found(own)
    return own | others, broken


@cache
def _warn() -> None:
    for reason in _registered()[1].values():
        warnings.warn(reason, FedrecWarning, stacklevel=3)


def methods() -> dict[str, type[Method]]:
    """Every known method under its own name."""
    _warn()
    return _registered()[0]


def method_class(name: str | type[Method]) -> tuple[type[Method], Mapping[str, object]]:
    """The method with this name or alias (in any case), and the parameters that the alias implies."""
    if isinstance(name, type):
        return name, {}
    known, broken = _registered()
    for method in (kind for usual in known.values() for kind in kinds_of(usual)):
        names: dict[str, Mapping[str, object]] = {method.name: {}, **method.aliases}
        for alias, implied in names.items():
            if name.lower() == alias.lower():
                _warn()
                return method, implied
    for spoken, reason in broken.items():
        if name.lower() == spoken.lower():
            raise FedrecError(reason)
    _warn()
    raise unknown("method", name, known)
