import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.errors import InputError
from ramify.network.graphs.generators import ring
from ramify.workloads.catalog import WORKLOADS, workload_from
from ramify.workloads.kyra import KyraModel
from ramify.workloads.majumder import MajumderModel
from ramify.workloads.parameters import describe
from ramify.workloads.semcast import SemcastModel

OVERLAY = ring(20)


@pytest.mark.parametrize(
    ("spec", "params"),
    [
        ("majumder", MajumderModel()),
        ("majumder:x=2", MajumderModel(x_percent=2)),
        ("majumder:localized2", MajumderModel(x_percent=15)),
        ("majumder:uniform:documents=50,per=broker_keyword", None),
        ("kyra:zipf:interest=10", KyraModel(interest_percent=10)),
        (
            " kyra : regional , interest_percent = 50 ",
            KyraModel(distribution="regional", interest_percent=50),
        ),
        ("semcast:disjoint:selectivity=4,clients=40", None),
    ],
)
def test_a_spec_is_a_name_presets_and_parameters(spec: str, params: object) -> None:
    workload = workload_from(spec, OVERLAY, 1)
    assert workload.name == spec.split(":")[0].strip()
    if params is not None:
        assert workload.params == params


def test_a_later_setting_wins() -> None:
    workload = workload_from("majumder:localized2:x=30", OVERLAY, 1)
    assert workload.params == MajumderModel(x_percent=30)


def test_presets_and_short_names_set_parameters_that_exist() -> None:
    for name, model in WORKLOADS.items():
        known = {parameter.name for parameter in describe(model.params)}
        assert set(model.short.values()) <= known, name
        assert not set(model.short) & known, name
        for settings in model.presets.values():
            assert settings.keys() <= known, name
            model.params(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nobody", "demo, majumder, kyra, semcast, zhao_wu, matchmaker"),
        ("", "demo, majumder"),
        ("kyra:normal", "Presets: uniform, zipf, multimodal, regional"),
        ("demo:fast", "Parameters: events,"),
        ("majumder:y=2", r"x_percent \(or x\)"),
        ("majumder:x=0", "x_percent = 0.0 is out of range. Allowed: a number above 0 to 100"),
        ("majumder:x=101", "a number above 0 to 100"),
        ("majumder:x=nan", "a number above 0 to 100"),
        ("majumder:x=two", "x_percent = 'two' is not a number"),
        ("majumder:keywords=1.5", "keywords = '1.5' is not a whole number. Allowed: a whole number from 1"),
        ("majumder:per=keyword", "one of broker, broker_keyword"),
        ("kyra:interest=-1", "Allowed"),
        ("semcast:matching=2", "Allowed: a number above 0 to 1"),
        ("semcast:selectivity=0.5", "Allowed: a number from 1"),
        ("zhao_wu:users=1", "Allowed: a whole number from 2"),
        ("zhao_wu:capacity_factor=inf", "Allowed"),
        ("matchmaker:alpha=0", "Allowed: a number above 0"),
        ("demo:events=0", "Allowed: a whole number from 1 to 1,000,000,000,000"),
        ("demo:events_per_second=0", "Allowed"),
        ("demo:locality=1.01", "Allowed: a number from 0 to 1"),
    ],
)
def test_a_wrong_spec_is_refused_with_what_is_allowed(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        workload_from(spec, OVERLAY, 1)


@given(value=st.one_of(st.floats(max_value=0), st.floats(min_value=100.001), st.booleans(), st.text()))
def test_parameters_given_in_code_are_checked_as_well(value: object) -> None:
    with pytest.raises(InputError, match="Allowed"):
        MajumderModel(x_percent=value)  # type: ignore[arg-type]


@given(st.text(alphabet="demokyra:=,x0123456789. ", max_size=40))
def test_no_spec_ends_in_another_error(spec: str) -> None:
    outcome = "kyra"
    try:
        outcome = workload_from(f"kyra:{spec}", ring(2), 1).name
    except InputError as error:
        outcome = str(error)
    assert "kyra" in outcome


def test_parameters_are_described_with_default_and_range() -> None:
    described = {parameter.name: parameter for parameter in describe(SemcastModel)}
    assert described["gateway_percent"].default == 20
    assert described["gateway_percent"].allowed == "a number above 0 to 100"
    assert SemcastModel().as_mapping()["selectivity_factor"] == 2
