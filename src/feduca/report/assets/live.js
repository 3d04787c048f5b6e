// Asks an address every second, and draws what it answers where that is new.
const poll = async (address, draw) => {
  for (let shown = ""; ;) {
    try {
      const answer = await fetch(address, { cache: "no-store" });
      if (answer.ok) { const text = await answer.text(); if (text !== shown) draw(JSON.parse(text)); shown = text; }
      badge(answer.ok ? "live" : "refused", !answer.ok);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // the server is gone: keep what is shown, keep trying
      badge("disconnected", true);
    }
    document.documentElement.dataset.ready = document.documentElement.dataset.complete = "yes";
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
};
