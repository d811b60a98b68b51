//! The runs of both sides as a Markdown table of ratios.

use std::fmt::Write as _;

use epochlog_benches::run::median;

use crate::figures::Figure;

/// Ours over Java's, of each run; and what was measured, as medians.
#[derive(Debug, PartialEq)]
struct Row {
    name: String,
    unit: &'static str,
    values: [f64; 2],
    ratios: [f64; 3],
    cpu_s_per_gb: Option<[f64; 2]>,
}

/// The table of these runs: for each the figures of Java and ours, in the same order.
///
/// # Panics
/// If there is no run.
pub(crate) fn markdown(runs: &[[Vec<Figure>; 2]]) -> String {
    let mut out = String::from(
        "| | RocketMQ | epochlog | ratio: min | median | max | CPU s/GB: RocketMQ | epochlog |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for index in 0..runs[0][0].len() {
        let row = row(runs, index);
        let [java, ours] = row.values.map(digits);
        let [min, middle, max] = row.ratios.map(digits);
        let cpu = row.cpu_s_per_gb.map(|cpu| cpu.map(digits));
        let [java_cpu, our_cpu] = cpu.unwrap_or_default();
        // Writing to a String does not fail.
        let _ = writeln!(
            out,
            "| {}, {} | {java} | {ours} | {min} | **{middle}** | {max} | {java_cpu} | {our_cpu} |",
            row.name, row.unit
        );
    }
    out
}

fn row(runs: &[[Vec<Figure>; 2]], index: usize) -> Row {
    let of = |side: usize| runs.iter().map(move |run| &run[side][index]);
    let first = &runs[0][0][index];
    let mut ratios: Vec<f64> = of(1)
        .zip(of(0))
        .map(|(ours, java)| ours.value / java.value)
        .collect();
    ratios.sort_by(f64::total_cmp);
    let cpu = |side: usize| -> Option<f64> {
        let each: Option<Vec<f64>> = of(side).map(Figure::cpu_s_per_gb).collect();
        each.map(median)
    };
    Row {
        name: first.name.clone(),
        unit: first.unit,
        values: [0, 1].map(|side| median(of(side).map(|it| it.value).collect())),
        ratios: [
            ratios[0],
            ratios[ratios.len() / 2],
            ratios[ratios.len() - 1],
        ],
        cpu_s_per_gb: cpu(0).zip(cpu(1)).map(|(java, ours)| [java, ours]),
    }
}

/// With as many digits as mean something.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64, cpu_s: &[f64]) -> Figure {
        Figure {
            name: "append".to_owned(),
            value,
            unit: "GB/s",
            wall_s: 1.0,
            cpu_s: cpu_s.to_vec(),
            bytes: 2_000_000_000,
        }
    }

    #[test]
    fn ratios_are_of_one_run_each_and_cpu_is_of_all_processes() {
        let run = |java, ours| {
            let java = vec![figure(java, &[3.0, 5.0]), figure(7.0, &[])];
            [java, vec![figure(ours, &[1.0, 0.5]), figure(3.5, &[])]]
        };
        let table = markdown(&[run(1.0, 3.0), run(2.0, 4.0), run(4.0, 40.0)]);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| append, GB/s | 2.00 | 4.00 | 2.00 | **3.00** | 10.0 | 4.00 | 0.75 |",
                "| append, GB/s | 7.00 | 3.50 | 0.50 | **0.50** | 0.50 |  |  |",
            ]
        );
    }
}
