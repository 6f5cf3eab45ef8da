//! Formatting of figures in tables.

/// One decimal below a hundred, none above, with separated thousands.
pub(super) fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 100.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |digits| ("-", digits));
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    format!("{sign}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separated_thousands() {
        let values = [0.0, 7.0, 7.25, 123.4, 1234.5, 1_234_567.0, -1000.0].map(number);
        assert_eq!(values, ["0", "7", "7.2", "123", "1 234", "1 234 567", "-1 000"]);
    }
}
