"""All methods by name. A method of another package registers under the entry point group `fedrec.methods`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache

from fedrec.errors import FedrecError, FedrecWarning, unknown
from fedrec.federation.contract import Method
from fedrec.methods import plugins
from fedrec.methods.average.fedatt import FedAtt
from fedrec.methods.average.fedavg import FedAvg
from fedrec.methods.average.fedfast import FedFast
from fedrec.methods.average.fedmf import FedMF
from fedrec.methods.average.perfedrec import PerFedRec
from fedrec.methods.closed_form.fedgram import FedGram
from fedrec.methods.cluster.cgfedrec import CGFedRec
from fedrec.methods.cluster.cofedrec import CoFedRec
from fedrec.methods.cold.cs_fedncf import CsFedNCF
from fedrec.methods.cold.cs_mf import CsMF
from fedrec.methods.cold.cs_ncf import CsNCF
from fedrec.methods.cold.cs_pfedrec import CsPFedRec
from fedrec.methods.cold.feddcn import FedDCN
from fedrec.methods.cold.fedmvmf import FedMVMF
from fedrec.methods.cold.fedvbpr import FedVBPR
from fedrec.methods.cold.gar import GAR
from fedrec.methods.cold.heater import Heater
from fedrec.methods.cold.ifedrec import IFedRec
from fedrec.methods.cold.ifedrec_lan import IFedRecLAN
from fedrec.methods.kinds import kinds_of
from fedrec.methods.mixture.fedca import FedCA
from fedrec.methods.mixture.gpfedrec import GPFedRec
from fedrec.methods.mixture.pfedgraph import PFedGraph
from fedrec.methods.personal.feddae import FedDAE
from fedrec.methods.personal.fedrap import FedRAP
from fedrec.methods.personal.fedrkg import FedRKG
from fedrec.methods.personal.pfedrec import PFedRec
from fedrec.methods.reference.ease import Ease
from fedrec.methods.reference.gfcf import CentralGFCF
from fedrec.methods.reference.lightgcn import CentralLightGCN
from fedrec.methods.reference.local import Local
from fedrec.methods.reference.mf import CentralMF
from fedrec.methods.reference.neumf import CentralNeuMF
from fedrec.methods.reference.popularity import Popularity
from fedrec.methods.reference.sasrec import CentralSASRec
from fedrec.methods.silo.fedcia import FedCIA

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
    own = {method.info.name: method for method in BUILT_IN}
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
        names: dict[str, Mapping[str, object]] = {method.info.name: {}, **method.info.aliases}
        for alias, implied in names.items():
            if name.lower() == alias.lower():
                _warn()
                return method, implied
    for spoken, reason in broken.items():
        if name.lower() == spoken.lower():
            raise FedrecError(reason)
    _warn()
    raise unknown("method", name, known)
