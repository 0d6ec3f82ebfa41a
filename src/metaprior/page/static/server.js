// Questions to the server: one at a time, and always the newest. What was asked meanwhile and is out of date is never sent.

const trouble = document.getElementById("trouble");
let asking = 0;

function count(change) {
  asking += change;
  document.body.dataset.asking = String(asking);
}

export async function about() {
  return (await answered(await fetch("/api/about"))).json();
}

export function asker(path, show) {
  let waiting = null;
  let busy = false;
  return async function ask(question) {
    waiting = question;
    if (busy) return;
    busy = true;
    count(1);
    while (waiting !== null) {
      const now = waiting;
      waiting = null;
      try {
        const body = JSON.stringify(now);
        const headers = { "content-type": "application/json" };
        const response = await answered(await fetch(path, { method: "POST", headers, body }));
        show(await response.json(), now);
        say("");
      } catch (error) {
        say(error.message);
      }
    }
    busy = false;
    count(-1);
  };
}

export function say(words) {
  trouble.textContent = words;
  trouble.hidden = words === "";
}

async function answered(response) {
  if (response.ok) return response;
  throw new Error((await response.text()).trim() || `the server answered ${response.status}`);
}
