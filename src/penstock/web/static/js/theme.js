// Runs before the first paint, so that a chosen theme does not flash; all else follows the system.
{
  const chosen = localStorage.getItem("penstock.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
